"""What a language model is asked, and what becomes of its answers: models, prompts, drafts of plans."""
