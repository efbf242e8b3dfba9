//! The API from outside: its algebra against tables and laws.

mod laws;
mod spellings;
mod tables;
