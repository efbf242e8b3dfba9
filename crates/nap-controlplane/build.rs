//! Sets cfgs that ignore tests without kubectl or a control plane.

fn main() {
    nap_controlplane_build::set_cfgs();
}
