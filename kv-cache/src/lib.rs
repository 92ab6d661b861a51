mod error; mod fingerprint; mod gguf; mod key; mod limits; mod policy; pub mod row; mod clock; mod log; mod threads;
pub use fingerprint::*; pub use key::*; pub use policy::*;  pub use error::*;
