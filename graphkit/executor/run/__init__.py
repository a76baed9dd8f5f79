"""Programs and sessions: specialised, fed, run, interrupted."""
