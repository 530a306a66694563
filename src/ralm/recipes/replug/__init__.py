"""The tables and figures of REPLUG (Shi et al., 2023), by what they ask."""
