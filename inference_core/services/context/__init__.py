"""What a prompt's context is made of: sources, fetched side by side, and the builder that has it assembled."""
