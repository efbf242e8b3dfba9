//! Rules between pods: spread constraints, affinity and anti-affinity.
//!
//! [`groups`] reduces the rules of a snapshot to pod counts per domain, [`lookup`] finds the ones
//! that concern a pod, [`domains`] interns the domains, [`running`] counts the running pods, and
//! [`counts`] keeps the counts while pods are placed and answers how many more a domain may take.

pub(crate) mod counts;
pub(crate) mod domains;
pub(crate) mod groups;
pub(crate) mod lookup;
pub(crate) mod running;
