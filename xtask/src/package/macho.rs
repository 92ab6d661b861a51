//! What a library or program of macOS is, read from its file: none can be run here.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::Endianness;
use object::macho;
use object::read::macho::{LoadCommandVariant, MachHeader, MachOFile64};
use object::{Object, ObjectSymbol};
use sha2::{Digest, Sha256};

/// What is looked at.
pub struct Image {
    pub cpu: u32,
    /// A library; otherwise a program.
    pub library: bool,
    /// The name that programs which are linked with it look for.
    pub install_name: Option<String>,
    /// The libraries that it is linked with.
    pub needs: BTreeSet<String>,
    /// The functions and data that it exports, without the underscore that C has before each name there.
    pub exports: BTreeSet<String>,
    /// The least macOS, as major and minor number.
    pub least: (u32, u32),
    /// Pages whose hashes are in its signature.
    pub signed_pages: usize,
}

/// Read a file. Its signature is checked: a program whose pages are not those that were signed is killed by Apple's processors.
pub fn read(path: &Path) -> Result<Image> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is not as macOS needs it", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Image> {
    let file = MachOFile64::<Endianness>::parse(bytes)?;
    let (header, endian) = (file.macho_header(), file.endian());
    let mut image = Image {
        cpu: header.cputype(endian),
        library: header.filetype(endian) == macho::MH_DYLIB,
        install_name: None,
        needs: BTreeSet::new(),
        exports: BTreeSet::new(),
        least: (0, 0),
        signed_pages: 0,
    };
    let mut commands = file.macho_load_commands()?;
    while let Some(command) = commands.next()? {
        let name = |at| Ok::<_, anyhow::Error>(String::from_utf8(command.string(endian, at)?.to_vec())?);
        match command.variant()? {
            LoadCommandVariant::IdDylib(id) => image.install_name = Some(name(id.dylib.name)?),
            LoadCommandVariant::Dylib(needed) => drop(image.needs.insert(name(needed.dylib.name)?)),
            LoadCommandVariant::BuildVersion(version) => image.least = numbers(version.minos.get(endian)),
            LoadCommandVariant::VersionMin(version) => image.least = numbers(version.version.get(endian)),
            LoadCommandVariant::LinkeditData(data) if data.cmd.get(endian) == macho::LC_CODE_SIGNATURE => {
                let (at, len) = (data.dataoff.get(endian) as usize, data.datasize.get(endian) as usize);
                let signature = bytes.get(at..at + len).context("its signature is cut off")?;
                image.signed_pages = check_signature(bytes, signature)?;
            }
            _ => {}
        }
    }
    for symbol in file.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global()) {
        if symbol.scope() == object::SymbolScope::Dynamic
            && let Some(name) = symbol.name()?.strip_prefix('_')
        {
            image.exports.insert(name.to_owned());
        }
    }
    Ok(image)
}

/// A version that has 16 bits for the first number and 8 for each of two more.
fn numbers(version: u32) -> (u32, u32) {
    (version >> 16, version >> 8 & 0xff)
}

/// The hashes of a signature (`CodeDirectory`; big-endian) are those of the file's pages. Answers how many there are.
fn check_signature(file: &[u8], signature: &[u8]) -> Result<usize> {
    const SIGNATURE: u32 = 0xfade_0cc0;
    const DIRECTORY: u32 = 0xfade_0c02;
    const SHA256: u8 = 2;
    let number = |bytes: &[u8], at: usize| -> Result<u32> {
        Ok(u32::from_be_bytes(bytes.get(at..at + 4).context("its signature is cut off")?.try_into()?))
    };
    ensure!(number(signature, 0)? == SIGNATURE, "its signature is of an unknown kind");
    let parts = (0..number(signature, 8)? as usize).map(|part| number(signature, 12 + 8 * part + 4));
    let parts = parts.collect::<Result<Vec<u32>>>()?;
    let directory = parts.into_iter().find_map(|at| {
        let part = signature.get(at as usize..)?;
        (number(part, 0).ok()? == DIRECTORY).then_some(part)
    });
    let directory = directory.context("its signature has no hashes")?;
    let (hashes, count, end) = (number(directory, 16)?, number(directory, 28)?, number(directory, 32)?);
    let [size, kind, _, page] = number(directory, 36)?.to_be_bytes();
    ensure!(kind == SHA256 && size == 32, "its signature has other hashes than SHA-256");
    let code = file.get(..end as usize).context("its signature is of a longer file")?;
    let mut checked = 0;
    for (page, bytes) in code.chunks(1 << page).enumerate() {
        let at = hashes as usize + page * usize::from(size);
        let signed = directory.get(at..at + usize::from(size)).context("its signature has too few hashes")?;
        ensure!(Sha256::digest(bytes)[..] == *signed, "page {page} was changed after it was signed");
        checked += 1;
    }
    ensure!(checked == count as usize, "its signature has {count} hashes for {checked} pages");
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signature of a file, as a linker makes it: one part, a page of 4 KiB for each hash.
    fn signature(file: &[u8]) -> Vec<u8> {
        let hashes: Vec<u8> = file.chunks(4096).flat_map(|page| Sha256::digest(page).to_vec()).collect();
        let pages = file.len().div_ceil(4096) as u32;
        let head = 44_u32;
        let directory = [0xfade_0c02, head + hashes.len() as u32, 0x2_0400, 2, head, head, 0, pages, file.len() as u32];
        let kinds = u32::from_be_bytes([32, 2, 0, 12]);
        let words =
            [0xfade_0cc0, 20 + head + hashes.len() as u32, 1, 0, 20].into_iter().chain(directory).chain([kinds, 0]);
        words.flat_map(u32::to_be_bytes).chain(hashes).collect()
    }

    #[test]
    fn a_page_that_was_changed_after_it_was_signed_is_found() {
        let mut file: Vec<u8> = (0..10_000_u32).map(|byte| byte as u8).collect();
        let signed = signature(&file);
        assert_eq!(check_signature(&file, &signed).unwrap(), 3);
        assert!(check_signature(&file[..9_000], &signed).is_err(), "cut off");
        for cut in 0..signed.len() {
            assert!(check_signature(&file, &signed[..cut]).is_err(), "{cut}");
        }
        file[9_999] ^= 1;
        let refused = check_signature(&file, &signed).unwrap_err().to_string();
        assert!(refused.contains("page 2"), "{refused}");
    }

    #[test]
    fn what_is_no_file_of_macos_is_refused() {
        assert!(parse(b"\x7fELF").is_err() && parse(&[]).is_err());
        assert_eq!(numbers(0x000b_0200), (11, 2));
    }
}
