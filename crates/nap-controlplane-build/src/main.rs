//! Builds the control plane that tests run on, unless it is there, and prints where it is.

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
