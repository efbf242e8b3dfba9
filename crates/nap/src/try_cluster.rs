//! `nap try`: an embedded cluster with an Azure emulator, for kubectl.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nap_clock::Clock;
use nap_sim::world::{World, WorldConfig, WorldError};

use crate::cli::TryArgs;
use crate::shutdown::interrupted;
use crate::user_error::UserError;
use crate::{manifests, serve};

/// Runs the cluster until a shutdown signal.
pub async fn try_cluster(args: TryArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.listen.ip().is_loopback(),
        UserError::new(
            format!("--listen {} is not a loopback address", args.listen),
            "the embedded cluster has no authentication: listen on 127.0.0.1 or [::1]",
        )
    );
    let config = WorldConfig {
        region: args.world.region.clone(),
        seed: args.world.seed,
        speed: args.speed,
        epoch: Clock::wall().now(),
    };
    let world = World::new(&config).map_err(explain_region)?;
    let kubernetes = serve::bind(args.listen).await?;
    let azure = serve::bind(std::net::SocketAddr::new(args.listen.ip(), 0)).await?;
    let (kubernetes_address, azure_address) = (kubernetes.local_addr()?, azure.local_addr()?);
    let folder = Folder::create(kubernetes_address.port())?;
    let kubeconfig =
        folder.write("kubeconfig", &kubeconfig(&format!("http://{kubernetes_address}")))?;
    let token = folder.write("token", "federated-token-of-the-emulator")?;
    let env =
        environment(&world, &kubeconfig, &token, &format!("http://{azure_address}"), args.speed);
    let env = folder.write("env", &env)?;
    world.install_crds().await?;
    manifests::apply(&world.client(), manifests::DEFAULT_NODEPOOL).await?;
    announce(&args, &config.region, &kubeconfig, &env);
    tokio::select! {
        biased;
        signal = interrupted() => signal?,
        result = serve::serve(kubernetes, world.server().clone()) => result?,
        result = serve::serve(azure, world.azure().clone()) => result?,
        result = world.run(!args.no_controllers) => result?,
    }
    farewell(&world);
    Ok(())
}

/// Prints the number and the cost of the VMs.
fn farewell(world: &World) {
    let (made, left) = (world.azure().bill().len(), world.azure().machines().len());
    let cost = world.azure().total_cost_micros(world.clock().now());
    let (dollars, micros) = (cost / 1_000_000, cost % 1_000_000);
    println!(
        "\nThe cluster is gone: {made} VM(s) created, {left} left, ${dollars}.{micros:06} in all."
    );
}

fn announce(args: &TryArgs, region: &str, kubeconfig: &Path, env: &Path) {
    println!(
        "A Kubernetes cluster with an emulated Azure ({region}) is up, at {}x speed. In another terminal:\n",
        args.speed
    );
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  kubectl get nodepools");
    println!("  kubectl apply -f examples/inflate.yaml");
    println!("  kubectl get nodeclaims -w\n");
    if args.no_controllers {
        println!("nap does not run in it. To start it from another terminal:\n");
        println!("  set -a; . {}; set +a", env.display());
        println!("  nap run\n");
    }
    println!("Ctrl-C ends it.");
}

/// Turns an unknown region into a user error with similar names as hint.
pub fn explain_region(error: WorldError) -> anyhow::Error {
    match error {
        WorldError::UnknownRegion { region, nearest } => {
            let hint = format!("did you mean {}?", nearest.join(", "));
            UserError::new(
                format!("--region: there is no region `{region}` in the catalogue"),
                hint,
            )
            .into()
        }
        other => other.into(),
    }
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: nap-try\n\
         clusters:\n- name: nap-try\n  cluster:\n    server: {server}\n\
         users:\n- name: nap-try\n  user: {{}}\n\
         contexts:\n- name: nap-try\n  context:\n    cluster: nap-try\n    user: nap-try\n    namespace: default\n"
    )
}

/// Environment of a `nap run` on this cluster, as shell assignments.
fn environment(world: &World, kubeconfig: &Path, token: &Path, azure: &str, speed: u32) -> String {
    let mut lines = vec![
        format!("KUBECONFIG={}", kubeconfig.display()),
        format!("AZURE_FEDERATED_TOKEN_FILE={}", token.display()),
        format!("NAP_SPEED={speed}"),
    ];
    lines.extend(
        world.azure_environment(azure).into_iter().map(|(key, value)| format!("{key}={value}")),
    );
    lines.join("\n") + "\n"
}

/// A temporary folder; removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn create(port: u16) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("nap-try-{port}"));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "could not remove");
        }
    }
}
