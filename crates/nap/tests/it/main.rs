//! The binary as a user runs it: real processes, real sockets on loopback, the real kubectl.

mod azure;
mod azure_check;
mod azure_server;
mod azure_smoke;
mod benching;
mod charting;
mod deciding;
mod documented;
mod errors;
mod guides;
mod imaging;
mod incumbent;
mod installing;
mod kill_and_restart;
mod kubectl_story;
mod linting;
mod operating;
mod permitted;
mod planning;
mod planning_live;
mod process;
mod rolling;
mod simulation;
mod taking_over;
mod trying;
mod windows;
