//! Options of `nap try` that only the embedded control plane has.

use clap::Args;

use crate::user_error::UserError;

/// Most nodes of the fixed pool.
const MAX_SYSTEM_NODES: i64 = 100;

/// Options of the embedded cluster.
#[derive(Clone, Debug, Args)]
pub struct EmbeddedArgs {
    /// Speed of VM boots and timers relative to real time; only with the embedded control plane
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub speed: u32,
    /// Nodes of a fixed pool that nap does not manage, as every AKS cluster has one; only with the
    /// embedded control plane
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=MAX_SYSTEM_NODES)
    )]
    pub system_nodes: u32,
}

impl EmbeddedArgs {
    /// Refuses what a real control plane cannot do.
    pub(super) fn refuse_beside_real(&self) -> Result<(), UserError> {
        if self.speed != 1 {
            return Err(UserError::new(
                "--speed needs the embedded control plane: a real one runs in real time",
                "use `--vm-delays 0.1` for VMs that boot within seconds",
            ));
        }
        if self.system_nodes != 0 {
            return Err(UserError::new(
                "--system-nodes needs the embedded control plane",
                "leave it out: a cluster of your own has nodes of its own",
            ));
        }
        Ok(())
    }
}
