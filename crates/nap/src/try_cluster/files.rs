//! Files of `nap try`: the kubeconfig, and the environment of a `nap run`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nap_sim::azure::Emulator;

/// A temporary folder; removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn create(port: u16) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("nap-try-{port}"));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Writes the environment of a `nap run` on this cluster, as shell assignments.
    pub fn write_env(
        &self,
        azure: &Emulator,
        kubeconfig: Option<&Path>,
        endpoint: &str,
        speed: u32,
    ) -> anyhow::Result<PathBuf> {
        let token = self.write("token", "federated-token-of-the-emulator")?;
        let mut lines = vec![
            format!("AZURE_FEDERATED_TOKEN_FILE={}", token.display()),
            format!("NAP_SPEED={speed}"),
            // Several such clusters may run on one computer.
            "METRICS_PORT=0".to_owned(),
            "HEALTH_PROBE_PORT=0".to_owned(),
        ];
        lines.extend(kubeconfig.map(|file| format!("KUBECONFIG={}", file.display())));
        let azure = azure.config().environment(endpoint);
        lines.extend(azure.into_iter().map(|(key, value)| format!("{key}={value}")));
        self.write("env", &(lines.join("\n") + "\n"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "could not remove");
        }
    }
}

/// A kubeconfig without credentials.
pub fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: nap-try\n\
         clusters:\n- name: nap-try\n  cluster:\n    server: {server}\n\
         users:\n- name: nap-try\n  user: {{}}\n\
         contexts:\n- name: nap-try\n  context:\n    cluster: nap-try\n    user: nap-try\n    namespace: default\n"
    )
}
