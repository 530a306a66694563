"""The tables and figures of In-Context RALM (Ram et al., 2023), by what they ask."""
