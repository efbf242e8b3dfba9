//! Packing pods onto existing nodes and hypothetical new ones, by several fill rules.
//!
//! A [`Packer`](packer::Packer) holds one packing in the making: the existing nodes, the
//! [`bins`] that will become launches, the [`limit_ledger`] of the pools and the topology counts. A
//! fill rule decides in which order pods meet bins: [`first_fit`] class by class, [`patterns`] and
//! [`constrained_patterns`] node by node, [`rounded_columns`] from a linear program. They share
//! [`open_bin`], which chooses the pool of a new bin, and [`constrained`], which places pods with
//! topology constraints domain by domain. [`leftovers`] gets what the fill rule could not place,
//! [`result`] is the packing with its price, and [`blockers`] lets pods that block disruption share
//! its nodes.

pub(crate) mod bin_queue;
pub(crate) mod bins;
pub(crate) mod blockers;
pub(crate) mod constrained;
pub(crate) mod constrained_patterns;
pub(crate) mod domain_binding;
pub(crate) mod existing;
pub(crate) mod first_fit;
pub(crate) mod leftovers;
pub(crate) mod limit_ledger;
pub(crate) mod open_bin;
pub(crate) mod packer;
pub(crate) mod patterns;
pub(crate) mod result;
pub(crate) mod rounded_columns;
pub(crate) mod size_caps;
pub(crate) mod strategy;
