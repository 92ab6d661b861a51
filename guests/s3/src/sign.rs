//! Signature version 4 of requests (AWS, "Authenticating Requests: Using the Authorization Header").
//!
//! The digests are the host's: the bytes of a body never come here.

use kv_store_sdk::key::hex;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Result, payloads};

use crate::uri::encode;

/// The hash of a body of no bytes.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// In place of a body's hash, where TLS keeps the body whole.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

/// Who computes digests.
pub trait Digests {
    fn sha256(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;
    fn hmac(&self, key: &[u8], bytes: Vec<u8>) -> Result<Vec<u8>>;
}

pub struct Host;

impl Digests for Host {
    fn sha256(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        payloads::sha256(&[Part::Bytes(bytes)])
    }

    fn hmac(&self, key: &[u8], bytes: Vec<u8>) -> Result<Vec<u8>> {
        payloads::hmac_sha256(key, &[Part::Bytes(bytes)])
    }
}

/// The key that signs requests of one day.
pub struct DayKey {
    /// `20130524/us-east-1/s3/aws4_request`
    scope: String,
    key: Vec<u8>,
    id: String,
}

impl DayKey {
    /// `stamp`: when it is, as `20130524T000000Z`.
    pub fn derive(digests: &impl Digests, credentials: &Credentials, stamp: &str, region: &str) -> Result<Self> {
        let day = stamp.get(..8).unwrap_or_default();
        let mut key = format!("AWS4{}", credentials.secret).into_bytes();
        for part in [day, region, "s3", "aws4_request"] {
            key = digests.hmac(&key, part.into())?;
        }
        Ok(DayKey { scope: format!("{day}/{region}/s3/aws4_request"), key, id: credentials.id.clone() })
    }

    /// Whether it signs what is sent now.
    pub fn is_for(&self, stamp: &str, id: &str) -> bool {
        self.scope.get(..8) == stamp.get(..8) && self.id == id
    }

    /// The value of Authorization.
    pub fn authorize(&self, digests: &impl Digests, request: &ToSign) -> Result<String> {
        let ToSign { method, path, query, headers, payload_hash, stamp } = *request;
        let mut headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload_hash}");
        let scope = &self.scope;
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&digests.sha256(canonical.into_bytes())?));
        let signature = hex(&digests.hmac(&self.key, text.into_bytes())?);
        Ok(format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", self.id))
    }
}

/// What a signature covers.
#[derive(Clone, Copy)]
pub struct ToSign<'a> {
    pub method: &'a str,
    /// Percent-encoded.
    pub path: &'a str,
    /// See [`query_string`].
    pub query: &'a str,
    /// Names in lower case, Host among them.
    pub headers: &'a [(String, String)],
    pub payload_hash: &'a str,
    pub stamp: &'a str,
}

/// A query as it is sent and signed: encoded, in order of the names.
pub fn query_string(query: &[(&str, String)]) -> String {
    let mut pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false))).collect();
    pairs.sort();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hmac::{Hmac, Mac};
    use sha2::{Digest, Sha256};

    struct Here;

    impl Digests for Here {
        fn sha256(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
            Ok(Sha256::digest(bytes).to_vec())
        }

        fn hmac(&self, key: &[u8], bytes: Vec<u8>) -> Result<Vec<u8>> {
            let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
            mac.update(&bytes);
            Ok(mac.finalize().into_bytes().to_vec())
        }
    }

    /// The examples of AWS's documentation of the signature.
    #[test]
    fn the_documented_examples_are_signed_as_documented() {
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        };
        let stamp = "20130524T000000Z";
        let key = DayKey::derive(&Here, &credentials, stamp, "us-east-1").unwrap();
        assert!(key.is_for("20130524T235959Z", &credentials.id) && !key.is_for("20130525T000000Z", &credentials.id));
        let sign = |method: &str, path: &str, query: &[(&str, String)], more: &[(&str, &str)], hash: &str| {
            let host =
                [("host", "examplebucket.s3.amazonaws.com"), ("x-amz-content-sha256", hash), ("x-amz-date", stamp)];
            let headers: Vec<_> =
                host.iter().chain(more).map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let query = query_string(query);
            let request = ToSign { method, path, query: &query, headers: &headers, payload_hash: hash, stamp };
            key.authorize(&Here, &request).unwrap()
        };
        let get = sign("GET", "/test.txt", &[], &[("range", "bytes=0-9")], EMPTY_SHA256);
        assert_eq!(
            get,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let date = ("date", "Fri, 24 May 2013 00:00:00 GMT");
        let put = sign("PUT", "/test%24file.text", &[], &[date, ("x-amz-storage-class", "REDUCED_REDUNDANCY")], hash);
        assert!(put.ends_with("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"), "{put}");
        let list = sign("GET", "/", &[("prefix", "J".into()), ("max-keys", "2".into())], &[], EMPTY_SHA256);
        assert!(list.ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"), "{list}");
        let lifecycle = sign("GET", "/", &[("lifecycle", String::new())], &[], EMPTY_SHA256);
        assert!(lifecycle.ends_with("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"), "{lifecycle}");
    }
}
