"""From text to passages: sources, splitting, decontamination, the store on disk."""
