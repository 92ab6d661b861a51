//! What a library owes to the process that has loaded it: [`signals`] stay that process's, and what is said on its
//! [`stderr`] waits for nobody.

pub mod signals;
pub mod stderr;
