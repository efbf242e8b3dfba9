//! Drift hashes of NodePool templates and AKSNodeClass specs, digit for digit those of the incumbent.
