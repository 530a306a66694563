"""Text in, passages out: sources, splitting, decontamination, the store on disk."""
