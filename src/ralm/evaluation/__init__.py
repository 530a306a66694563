"""What reading was worth: perplexities, run folders."""
