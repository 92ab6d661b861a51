//! URIs that name something at an endpoint in place of a server: `s3://BUCKET/PREFIX`, where the operator says at which service the
//! bucket is. What is meant is the same URI with the server written out, so the two forms open one store.
//!
//! A component declares that it takes such URIs with the line `endpoint` of its section. The server that the line names is taken only
//! from a component that is trusted to do so ([`Served::trusted`]): a stranger must not choose its own grant. Pure, but for the variables
//! of the environment, which a function hands in.

use super::Served;
use crate::error::Error;
use crate::uri::{StoreUri, variable_name, variable_prefix};

/// How long a declared endpoint, a given one and the value of an option in it may be.
const MAX_BYTES: usize = 253;

/// Where the endpoint is said to be, beside the component's own line.
pub struct EndpointSources<'a> {
    /// `endpoint` of the backend's table.
    pub endpoint: Option<&'a str>,
    /// The value of an option of the backend's table.
    pub option: &'a dyn Fn(&str) -> Option<String>,
    /// The value of a variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

/// The URI with its server where it names something at the backend's endpoint; `None` where it names a server, as one with a dot or a
/// port does, or where the backend has no endpoint.
pub fn at_endpoint(uri: &StoreUri, served: &Served, said: &EndpointSources<'_>) -> Result<Option<StoreUri>, Error> {
    let (name, backend) = (uri.authority(), &served.backend);
    let Some(declared) = &served.declared.endpoint else { return Ok(None) };
    if name.is_empty() || name.contains(['.', ':', ',', '@', '[', ']', '?', '#']) {
        return Ok(None);
    }
    let variable = |name: &str| {
        let name = variable_prefix(backend) + name;
        (said.variable)(&name).map(|value| (name, value))
    };
    if let Some(endpoint) = said.endpoint {
        return placed(uri, served, endpoint, &format!("endpoint of backend.{backend} in the config")).map(Some);
    }
    if let Some((name, endpoint)) = variable("ENDPOINT_URL") {
        return placed(uri, served, &endpoint, &format!("the variable {name}")).map(Some);
    }
    let unsaid = |also: &str| {
        Error::invalid(format!(
            "{} names no server: set endpoint = \"https://HOST\"{also} in [backend.{backend}] of the config, or the variable {}ENDPOINT_URL; if \
             {name} is itself a server, write its port",
            uri.as_str(),
            variable_prefix(backend)
        ))
    };
    if !served.trusted {
        return Err(unsaid(""));
    }
    let mut endpoint = declared.clone();
    for option in options(declared) {
        let value = (said.option)(option).or_else(|| variable(&variable_name(option)).map(|(_, value)| value));
        let Some(value) = value else { return Err(unsaid(&format!(", or options.{option},"))) };
        let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if value.is_empty() || value.len() > MAX_BYTES || !value.chars().all(tame) {
            let shown = crate::log::clean(&value);
            return Err(Error::invalid(format!("the {option} {shown:?} is not made of a-z, 0-9 and '-'")));
        }
        endpoint = endpoint.replace(&format!("{{{option}}}"), &value);
    }
    placed(uri, served, &endpoint, "the component's own endpoint").map(Some)
}

/// The options that stand in a declared endpoint: `region` in `https://s3.{region}.amazonaws.com`.
pub fn options(declared: &str) -> impl Iterator<Item = &str> {
    declared.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(option, _)| option)
}

/// Whether a component may declare this as its endpoint: `https://` or `http://`, and a host, perhaps with a port, whose parts may be options
/// in braces.
pub fn is_endpoint(endpoint: &str) -> bool {
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | ':' | '{' | '}');
    endpoint.len() <= MAX_BYTES && host.is_some_and(|host| !host.is_empty() && host.chars().all(tame))
}

/// The URI at an endpoint. `http://` needs a scheme of the backend that ends in `+http`.
fn placed(uri: &StoreUri, served: &Served, endpoint: &str, whose: &str) -> Result<StoreUri, Error> {
    let wrong = |what: &str| Error::invalid(format!("{whose}: {:?} {what}", crate::log::clean(endpoint)));
    let (plain, rest) = match (endpoint.strip_prefix("https://"), endpoint.strip_prefix("http://")) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => return Err(wrong("does not begin with https:// or http://")),
    };
    let server = rest.strip_suffix('/').unwrap_or(rest);
    if endpoint.len() > MAX_BYTES || server.is_empty() || server.contains(['/', '?', '#', '@', ',']) {
        return Err(wrong("is not https://HOST[:PORT]"));
    }
    if super::Host::parse(super::split_port(server).0).is_none() {
        return Err(wrong("names no host"));
    }
    let listed = served.declared.schemes.iter().map(|listed| listed.scheme.as_str());
    let scheme = match plain {
        true => listed.into_iter().find(|scheme| scheme.ends_with("+http")),
        false => Some(listed.into_iter().find(|scheme| !scheme.ends_with("+http")).unwrap_or(uri.scheme())),
    };
    let scheme = scheme.ok_or_else(|| wrong("is not over TLS, and the backend serves no scheme that ends in +http"))?;
    StoreUri::parse(&format!("{scheme}://{server}/{}{}", uri.authority(), uri.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Declared;

    fn s3(trusted: bool, endpoint: &str) -> Served {
        let section = [("schemes", "s3 s3+http:80"), ("port", "443"), ("endpoint", endpoint)];
        let declared = Declared::of(&section.map(|(key, value)| (key.to_owned(), value.to_owned())));
        Served { backend: "s3".to_owned(), declared, trusted }
    }

    const AWS: &str = "https://s3.{region}.amazonaws.com";

    fn at(uri: &str, served: &Served, said: [Option<&str>; 4]) -> Result<Option<String>, String> {
        let [endpoint, region, endpoint_url, region_variable] = said;
        let said = EndpointSources {
            endpoint,
            option: &|name| region.filter(|_| name == "region").map(str::to_owned),
            variable: &|name| match name {
                "S3_ENDPOINT_URL" => endpoint_url.map(str::to_owned),
                "S3_REGION" => region_variable.map(str::to_owned),
                _ => None,
            },
        };
        let placed = at_endpoint(&StoreUri::parse(uri).unwrap(), served, &said).map_err(|error| error.to_string())?;
        Ok(placed.map(|uri| uri.as_str().to_owned()))
    }

    #[test]
    fn a_bucket_is_at_the_endpoint_that_the_operator_names() {
        let s3 = s3(true, AWS);
        let placed = |said| at("s3://my-bucket/kv/", &s3, said).unwrap().unwrap();
        let aws = "s3://s3.eu-central-1.amazonaws.com/my-bucket/kv";
        assert_eq!(placed([None, Some("eu-central-1"), None, None]), aws);
        assert_eq!(placed([None, None, None, Some("eu-central-1")]), aws);
        assert_eq!(placed([None, Some("eu-central-1"), None, Some("us-east-1")]), aws, "the config goes first");
        let minio = "s3+http://minio:9000/my-bucket/kv";
        assert_eq!(placed([Some("http://minio:9000/"), Some("x"), Some("https://h"), None]), minio);
        assert_eq!(placed([None, Some("x"), Some("http://minio:9000"), None]), minio);
        assert_eq!(placed([Some("https://[::1]:9"), None, None, None]), "s3://[::1]:9/my-bucket/kv");
        // The endpoint says whether it is over TLS.
        let https = Some("https://h");
        assert_eq!(at("s3+http://b", &s3, [https, None, None, None]), Ok(Some("s3://h/b".to_owned())));
    }

    #[test]
    fn a_name_with_a_dot_or_a_port_is_a_server() {
        let said = [Some("https://h"), Some("x"), None, None];
        for uri in ["s3://h.lan/b", "s3://h:9000/b", "s3://h:1,g:1/b", "s3://[::1]/b", "s3:///b", "s3://u@h/b"] {
            assert_eq!(at(uri, &s3(true, AWS), said), Ok(None), "{uri}");
        }
        assert_eq!(at("acme://h/b", &Served::by_name("acme"), said), Ok(None), "a backend without an endpoint");
    }

    #[test]
    fn without_an_endpoint_the_error_says_what_to_set() {
        let error = at("s3://my-bucket/kv", &s3(true, AWS), [None; 4]).unwrap_err();
        for said in ["s3://my-bucket/kv", "endpoint = ", "options.region", "S3_ENDPOINT_URL", "write its port"] {
            assert!(error.contains(said), "{said}: {error}");
        }
        let stranger = s3(false, "https://mine.example");
        let error = at("s3://b", &stranger, [None, Some("x"), None, Some("x")]).unwrap_err();
        assert!(error.contains("S3_ENDPOINT_URL") && !error.contains("mine.example"), "{error}");
        assert_eq!(at("s3://b", &stranger, [Some("https://h"), None, None, None]), Ok(Some("s3://h/b".to_owned())));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_its_name() {
        let said = |endpoint| at("s3://b", &s3(true, AWS), [Some(endpoint), None, None, None]).unwrap_err();
        for wrong in ["", "h", "ftp://h", "https://", "https://h/path", "https://u@h", "https://a,b", "https://h_/?x"] {
            assert!(said(wrong).contains("endpoint of backend.s3"), "{wrong}");
        }
        for region in ["", "EU", "a.b", "evil.example/", "a\u{1b}"] {
            assert!(at("s3://b", &s3(true, AWS), [None, Some(region), None, None]).is_err(), "{region}");
        }
        let mut only_tls = s3(true, AWS);
        only_tls.declared.schemes.truncate(1);
        assert!(at("s3://b", &only_tls, [Some("http://h"), None, None, None]).unwrap_err().contains("+http"));
    }

    #[test]
    fn what_a_component_may_declare() {
        for good in [AWS, "https://h", "http://h:80", "https://{a}.{b}"] {
            assert!(is_endpoint(good), "{good}");
        }
        for wrong in ["", "https://", "h", "https://H", "https://h/x", "https://u@h", "https://h h"] {
            assert!(!is_endpoint(wrong), "{wrong}");
        }
        assert_eq!(options("https://{a}.x.{b-c}").collect::<Vec<_>>(), ["a", "b-c"]);
        assert_eq!(variable_name("storage-class"), "STORAGE_CLASS");
    }
}
