"""Which memories reach the prompt: labelled cases, and what recall and the context engineer make of them."""
