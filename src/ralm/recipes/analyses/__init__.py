"""Questions about both papers that neither answers, one file each."""
