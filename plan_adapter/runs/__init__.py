"""One run: its approval, its life from the first row to the last, and where its steps are called."""
