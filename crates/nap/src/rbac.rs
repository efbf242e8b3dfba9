//! `nap rbac`: prints the roles that `nap run` needs.

use clap::Args;
use nap_controllers::permissions;

/// Options of `nap rbac`.
#[derive(Clone, Debug, Args)]
pub struct RbacArgs {
    /// Name of the service account, the roles and their bindings
    #[arg(long, default_value = "nap")]
    pub name: String,
    /// Namespace that nap runs in
    #[arg(long, short = 'n', default_value = "kube-system")]
    pub namespace: String,
    /// Add what `--scheduler-config` needs
    #[arg(long)]
    pub default_spread: bool,
}

/// Prints a service account, its roles and bindings as YAML, for `kubectl apply -f -`.
pub fn rbac(args: &RbacArgs) -> anyhow::Result<()> {
    for object in permissions::roles(&args.name, &args.namespace, args.default_spread) {
        println!("---\n{}", serde_saphyr::to_string(&object)?.trim_end());
    }
    Ok(())
}
