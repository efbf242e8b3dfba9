//! Problem files, plan files and their judge.

mod fleets;
mod problems;
