"""`python -m graphkit` is the `graphkit` command."""

from graphkit.cli import main

if __name__ == "__main__":
    main()
