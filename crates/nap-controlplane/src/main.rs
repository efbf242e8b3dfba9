//! Starts a control plane, prints the path of its kubeconfig, and stops it with this process.

use nap_controlplane::{Parts, Plane};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parts = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Parts::All,
        ["api"] => Parts::Api,
        _ => {
            return Err(
                "usage: nap-controlplane [api]; `api` starts no controllers and no scheduler"
                    .to_owned(),
            );
        }
    };
    nap_controlplane_build::build()?;
    let plane = Plane::start(parts).await.map_err(|error| error.to_string())?;
    println!("export KUBECONFIG={}", plane.kubeconfig().display());
    eprintln!("the control plane is ready at {}; Ctrl-C stops it", plane.url());
    tokio::signal::ctrl_c().await.map_err(|error| error.to_string())
}
