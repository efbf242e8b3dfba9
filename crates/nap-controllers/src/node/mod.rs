//! Nodes: their drain and termination, and the taint that keeps pods away meanwhile.

mod drain;
pub mod taint;
pub mod termination;
