"""Texts to vectors: the local model, LangChain's providers, or any LangChain ``Embeddings`` object."""
