//! The `nap` command.

#[macro_use]
mod output;

mod azure;
mod bench;
mod catalogue;
mod cli;
mod connect;
mod crds;
mod decisions;
mod demo;
mod disable;
mod engine_args;
mod feature_gates;
mod lint;
mod manifests;
mod plan;
mod rbac;
mod run;
mod serve;
mod shutdown;
mod sim;
mod try_cluster;
mod user_error;
mod windows;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            user_error::print(&error);
            ExitCode::from(user_error::exit_code(&error))
        }
    }
}
