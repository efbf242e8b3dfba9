//! The `nap` command.

mod bench;
mod cli;
mod connect;
mod crds;
mod demo;
mod lint;
mod manifests;
mod run;
mod serve;
mod sim;
mod try_cluster;
mod user_error;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            user_error::print(&error);
            ExitCode::FAILURE
        }
    }
}
