"""Memory served to other programs. Importing it needs the extras that its modules name."""
