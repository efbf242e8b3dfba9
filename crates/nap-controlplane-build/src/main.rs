//! Builds the control plane for tests if it is missing, and prints its folder.

use std::process::ExitCode;

fn main() -> ExitCode {
    match nap_controlplane_build::build() {
        Ok(folder) => {
            println!("{}", folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
