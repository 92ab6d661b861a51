//! What is measured against, where it is not a library of others: written as somebody would who has nothing else to do.

pub mod resp;
