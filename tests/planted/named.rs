//! The table of bugs as an enum for each guest.

macro_rules! bugs {
    ($($guest:ident: $kind:ident {
        $($class:ident: $($variant:ident $name:literal $what:literal $($escaped:ident)?),+;)+
    })+) => {
        $(
            #[derive(Clone, Copy, PartialEq, Eq)]
            #[allow(dead_code, reason = "a guest has the bugs of one of these")]
            pub enum $kind {
                Sound,
                $($(#[doc = $what] $variant,)+)+
            }

            #[allow(dead_code, reason = "as above")]
            impl $kind {
                /// The bug that the scheme of a URI names.
                pub fn named(uri: &str) -> kv_store_sdk::Result<Self> {
                    let scheme = uri.split("://").next().unwrap_or_default();
                    Ok(match scheme {
                        concat!("sound-", stringify!($guest)) => $kind::Sound,
                        $($($name => $kind::$variant,)+)+
                        _ => return Err(kv_store_sdk::Error::invalid(format!("{scheme} is none of the bugs"))),
                    })
                }
            }
        )+
    };
}

include!("bugs.rs");
