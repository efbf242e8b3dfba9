//! The API from outside: its algebra against tables and laws.

mod hashes;
mod laws;
mod spellings;
mod tables;
