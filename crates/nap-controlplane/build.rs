//! Finds out whether there is a control plane to test with: tests that need one are ignored without it, and say so.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(no_control_plane)");
    println!("cargo::rustc-check-cfg=cfg(no_incumbent)");
    for variable in ["KUBEBUILDER_ASSETS", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for folder in nap_controlplane_build::searched() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    if let Err(missing) = nap_controlplane_build::binaries() {
        println!("cargo::warning=tests on a real control plane are ignored: {missing}");
        println!("cargo::rustc-cfg=no_control_plane");
    }
    if let Err(missing) = nap_controlplane_build::incumbent_definitions() {
        println!("cargo::warning=tests with the incumbent's definitions are ignored: {missing}");
        println!("cargo::rustc-cfg=no_incumbent");
    }
}
