//! What `doctor` and `inspect` both tell people.

use kv_store_wasm::{Inspection, NearLevel, Reaches, SaidOfValues, Scheme};

use crate::{contract, show};

/// What a component is.
pub fn inspection(found: &Inspection) {
    println!("sha256   {}", found.sha256);
    println!(
        "size     {}, {} functions, the largest {}",
        show::bytes(found.bytes),
        found.functions,
        show::bytes(found.largest_function)
    );
    println!("host     serves {}, whose text has sha256 {}", contract::NAME, contract::sha256());
    if found.stamp.is_empty() {
        println!("stamp    none: not built with the SDK");
    }
    // What is taken of these is told instead, and the wishes at last.
    const TOLD: [&str; 3] = ["schemes", "port", "wish"];
    for (key, value) in found.stamp.iter().filter(|(key, _)| !TOLD.contains(&key.as_str())) {
        println!("{key:<8} {value}");
    }
    for Scheme { scheme, port, .. } in &found.schemes {
        let port = port.map(|port| format!(", port {port} where the URI names none")).unwrap_or_default();
        println!("serves   {scheme}://{port}");
    }
    for import in &found.imports {
        match &import.not_offered {
            None => println!("imports  {}", import.name),
            Some(why) => println!("imports  {}, {why}", import.name),
        }
    }
    for export in &found.exports {
        println!("exports  {export}");
    }
    for (_, wish) in found.stamp.iter().filter(|(key, _)| key == "wish") {
        println!("wishes   {wish}");
    }
    for problem in &found.problems {
        println!("PROBLEM  {problem}");
    }
}

/// What is kept on this machine, before the backend.
pub fn descriptor(values: &SaidOfValues) {
    let SaidOfValues { said, unset, digest, required, .. } = values;
    if said.is_empty() && !required {
        return;
    }
    let said: Vec<String> = said.iter().map(|(name, text)| format!("{name} {text:?}")).collect();
    let said = if said.is_empty() { "nothing by the config".to_owned() } else { said.join(", ") };
    let digest = digest.as_ref().map(|digest| format!(" (descriptor {digest} where the engine says no more)"));
    println!("values   {said}{}", digest.unwrap_or_default());
    if *required && !unset.is_empty() {
        println!("         required of the engine: {}", unset.join(", "));
    }
}

pub fn near(near: &NearLevel) {
    let memory = (near.memory_bytes > 0).then(|| format!("{} in memory", show::bytes(near.memory_bytes)));
    let disk = near.disk.as_ref().map(|path| format!("{} in {}", show::bytes(near.disk_bytes), path.display()));
    let places: Vec<String> = memory.into_iter().chain(disk).collect();
    println!(
        "near     chunks under their content's hash: {}; a delete by others is seen after {} s",
        places.join(", then "),
        near.ttl_s
    );
}

/// What a store may reach, a line for each.
pub fn grants(reaches: &Reaches) {
    let mut lines = Vec::new();
    lines.extend(reaches.directory.iter().map(|path| format!("directory {}", path.display())));
    lines.extend(reaches.fs.iter().map(|(name, path, write)| {
        format!("directory {name} = {}{}", path.display(), if *write { "" } else { ", to read" })
    }));
    lines.extend(reaches.servers.iter().map(|server| format!("server {server}")));
    lines.extend(reaches.connect.iter().map(|pattern| format!("servers {pattern}")));
    if reaches.private_networks {
        lines.push("those servers in private networks too".to_owned());
    }
    let set = |set: &bool| if *set { "set" } else { "not set" };
    lines.extend(reaches.environment.iter().map(|(name, is)| format!("variable {name}, {}", set(is))));
    lines.extend(reaches.secrets.iter().map(|s| format!("secret {} from {}, {}", s.name, s.kept, set(&s.set))));
    lines.extend(reaches.secret_prefix.iter().map(|prefix| format!("secrets from variables {prefix}*")));
    if lines.is_empty() {
        lines.push("nothing outside".to_owned());
    }
    lines.iter().for_each(|line| println!("         {line}"));
}
