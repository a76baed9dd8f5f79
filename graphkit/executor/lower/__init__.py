"""From a graph whose dimensions are bound to steps of a native program; what values decide is left to the run."""
