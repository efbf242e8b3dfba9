//! Disruption budgets: how many nodes of a pool may be disrupted at this moment.
