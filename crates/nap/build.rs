//! Tests that need kubectl or a control plane are ignored without it, and counted as such.

fn main() {
    nap_controlplane_build::set_cfgs();
}
