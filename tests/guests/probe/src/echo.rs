//! One exchange with the test's echo server: `LENGTH\n` and as many bytes, both ways.

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, Payload, Result, net};

pub fn exchange(server: &str) -> Result<Payload> {
    let connection = {
        let options = net::ConnectOptions::new();
        options.set_session("echo")?;
        net::connect(server, Some(&options))?
    };
    let data = Payload::from_bytes(if connection.resumed() { b"again" } else { b"first" })?;
    let header = format!("{}\n", data.len());
    connection.send(&[Part::Bytes(header.into_bytes()), Part::Payload(&data)])?;
    let len = connection.receive_until(b"\n", 20)?;
    let len = std::str::from_utf8(&len).ok().and_then(|text| text.parse().ok());
    let answer = connection.receive_payload(len.ok_or_else(|| Error::corrupt("no length"))?, None)?;
    net::park(connection);
    Ok(answer)
}
