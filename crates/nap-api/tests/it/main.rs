//! The API from outside: its algebra against tables and laws, and its definitions on an embedded server.

mod definitions;
mod laws;
mod support;
mod tables;
