//! Problem files, plan files and their judge.

mod problems;
