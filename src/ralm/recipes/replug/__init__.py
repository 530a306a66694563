"""The tables and figures of REPLUG (Shi et al., 2023), one file each."""
