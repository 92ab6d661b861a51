//! Functions of libllama that this library does not know, and that some library of the process uses. Behind such a function the state of
//! a sequence could change unseen, so the automatic cache is then off.

use std::ffi::CString;
use std::path::Path;

use crate::engine;

/// Functions that change no sequence and take no index of an output, by the begin of their names.
const HARMLESS: &[&str] = &[
    "llama_adapter_",
    "llama_add_bos_token",
    "llama_add_eos_token",
    "llama_attach_threadpool",
    "llama_backend_",
    "llama_batch_free",
    "llama_batch_get_one",
    "llama_batch_init",
    "llama_build_info",
    "llama_chat_",
    "llama_context_default_params",
    "llama_detach_threadpool",
    "llama_detokenize",
    "llama_flash_attn_type_name",
    "llama_free_model",
    "llama_ftype_name",
    "llama_get_causal_attn",
    "llama_get_ctx_other",
    "llama_get_embeddings",
    "llama_get_memory",
    "llama_get_model",
    "llama_get_vocab",
    "llama_grammar_",
    "llama_init_from_model",
    "llama_load_mode_",
    "llama_load_model_from_file",
    "llama_log_",
    "llama_max_",
    "llama_memory_breakdown_print",
    "llama_memory_can_shift",
    "llama_model_",
    "llama_n_",
    "llama_new_context_with_model",
    "llama_numa_init",
    "llama_params_fit",
    "llama_perf_",
    "llama_pooling_type",
    "llama_print_system_info",
    "llama_sampler_",
    "llama_set_abort_callback",
    "llama_set_n_threads",
    "llama_set_nextn_layer_offset",
    "llama_set_warmup",
    "llama_split_",
    "llama_supports_",
    "llama_time_us",
    "llama_token_",
    "llama_tokenize",
    "llama_version",
    "llama_vocab_",
];

/// Functions that this library stands in for, and those that need no stand-in though they are near.
const KNOWN: &[&str] = &[
    "llama_batch_ext_add",
    "llama_batch_ext_add_embd",
    "llama_batch_ext_add_seq",
    "llama_batch_ext_add_token",
    "llama_batch_ext_clear",
    "llama_batch_ext_free",
    "llama_batch_ext_init",
    "llama_batch_ext_set_decision_order",
    "llama_batch_ext_set_embd_state",
    "llama_batch_ext_set_embd_token",
    "llama_batch_ext_set_output_embd",
    "llama_batch_ext_set_output_logits",
    "llama_batch_ext_set_pos",
    "llama_decode",
    "llama_encode",
    "llama_free",
    "llama_get_logits",
    "llama_get_logits_ith",
    "llama_get_sampled_candidates_count_ith",
    "llama_get_sampled_candidates_ith",
    "llama_get_sampled_logits_count_ith",
    "llama_get_sampled_logits_ith",
    "llama_get_sampled_probs_count_ith",
    "llama_get_sampled_probs_ith",
    "llama_get_sampled_token_ith",
    "llama_get_state_size",
    "llama_copy_state_data",
    "llama_set_state_data",
    "llama_load_session_file",
    "llama_save_session_file",
    "llama_memory_clear",
    "llama_memory_seq_add",
    "llama_memory_seq_cp",
    "llama_memory_seq_div",
    "llama_memory_seq_keep",
    "llama_memory_seq_pos_max",
    "llama_memory_seq_pos_min",
    "llama_memory_seq_rm",
    "llama_process",
    "llama_set_adapter_cvec",
    "llama_set_adapters_lora",
    "llama_set_adapter_lora",
    "llama_rm_adapter_lora",
    "llama_clear_adapter_lora",
    "llama_set_causal_attn",
    "llama_set_embeddings",
    "llama_set_embeddings_layer_inp",
    "llama_set_embeddings_nextn",
    "llama_set_sampler",
    "llama_state_get_data",
    "llama_state_get_size",
    "llama_state_load_file",
    "llama_state_save_file",
    "llama_state_seq_get_data",
    "llama_state_seq_get_data_ext",
    "llama_state_seq_get_size",
    "llama_state_seq_get_size_ext",
    "llama_state_seq_load_file",
    "llama_state_seq_save_file",
    "llama_state_seq_set_data",
    "llama_state_seq_set_data_ext",
    "llama_state_set_data",
    "llama_synchronize",
];

/// A function of libllama that is used in this process and is not known; `Err` where that cannot be found out.
pub fn unknown_function() -> Result<Option<String>, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    for file in code_files(&maps) {
        let bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let Some(names) = undefined(&bytes) else { continue };
        for name in names {
            let Some(function) = function_of(name) else { continue };
            if !is_known(function) && CString::new(name).is_ok_and(|name| engine::is_of_libllama(&name)) {
                return Ok(Some(format!("{function}, which {} uses", Path::new(file).display())));
            }
        }
    }
    Ok(None)
}

/// Files with code that are mapped, each once.
fn code_files(maps: &str) -> Vec<&str> {
    let mut files: Vec<&str> = Vec::new();
    for line in maps.lines() {
        let path = line.splitn(6, ' ').nth(5).map(str::trim_start).unwrap_or_default();
        let runs = line.split(' ').nth(1).is_some_and(|permissions| permissions.contains('x'));
        if runs && path.starts_with('/') && !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// The name of a function `llama_...`, of C or C++. Others are none of libllama's.
fn function_of(symbol: &str) -> Option<&str> {
    if symbol.starts_with("llama_") {
        return Some(symbol);
    }
    let rest = symbol.strip_prefix("_Z")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (length, rest) = rest.split_at_checked(digits)?;
    let name = rest.get(..length.parse().ok()?)?;
    name.starts_with("llama_").then_some(name)
}

fn is_known(function: &str) -> bool {
    KNOWN.contains(&function) || HARMLESS.iter().any(|begin| function.starts_with(begin))
}

/// The names that an ELF file of 64 bits takes from other libraries. `None`: it is no such file.
fn undefined(file: &[u8]) -> Option<Vec<&str>> {
    const DYNSYM: u32 = 11;
    const SECTION: usize = 64;
    const SYMBOL: usize = 24;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let part = file.get(at..at.checked_add(bytes)?)?;
        Some(part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // 64 bits, little-endian.
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let sections = usize::try_from(number(40, 8)?).ok()?;
    let count = number(60, 2)? as usize;
    let section = |index: usize| -> Option<(u64, usize, usize, usize)> {
        let at = sections.checked_add(index.checked_mul(SECTION)?)?;
        let field = |offset: usize| number(at + offset, 8).and_then(|value| usize::try_from(value).ok());
        Some((number(at.checked_add(4)?, 4)?, field(24)?, field(32)?, number(at + 40, 4)? as usize))
    };
    let (_, symbols, size, strings) = (0..count).filter_map(section).find(|(kind, ..)| u64::from(DYNSYM) == *kind)?;
    let (_, text, text_size, _) = section(strings)?;
    let text = file.get(text..text.checked_add(text_size)?)?;
    let symbols = file.get(symbols..symbols.checked_add(size)?)?;
    let name = |symbol: &[u8; SYMBOL]| {
        let [name @ .., _, _, _, _] = symbol.first_chunk::<8>()?;
        let defined = symbol.get(6..8)? != [0, 0];
        let rest = text.get(u32::from_le_bytes(*name) as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(rest.get(..end)?).ok()?;
        (!defined && !name.is_empty()).then_some(name)
    };
    Some(symbols.as_chunks::<SYMBOL>().0.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn functions_of_libllama_are_told_by_their_names() {
        assert_eq!(function_of("llama_decode"), Some("llama_decode"));
        assert_eq!(function_of("_Z26llama_set_embeddings_nextnP13llama_contextbb"), Some("llama_set_embeddings_nextn"));
        for other in [
            "_Z20common_sampler_sampleP14common_samplerP13llama_contexti",
            "malloc",
            "_ZN5llama1aEv",
            "_Z99llama_a",
            "_Z",
        ] {
            assert_eq!(function_of(other), None, "{other}");
        }
        assert!(is_known("llama_model_n_embd") && is_known("llama_memory_seq_rm") && is_known("llama_sampler_sample"));
        assert!(
            !is_known("llama_memory_seq_rotate")
                && !is_known("llama_process_many")
                && !is_known("llama_state_seq_load_all")
        );
    }

    #[test]
    fn undefined_names_of_this_program_are_read() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = undefined(&program).unwrap();
        assert!(names.contains(&"malloc") || names.contains(&"free"), "{names:?}");
        assert!(!names.contains(&"main"));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(code_files(&maps).iter().any(|file| file.contains("libc")), "{maps}");
    }

    proptest! {
        #[test]
        fn no_file_panics(noise: Vec<u8>, changes in proptest::collection::vec((0..64_usize, any::<u8>()), 1..4)) {
            undefined(&noise);
            let mut file = small_file();
            for (at, byte) in changes {
                file[at] = byte;
            }
            undefined(&file);
        }
    }

    /// An ELF file with one undefined name, and nothing else.
    fn small_file() -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        let names = b"\0llama_x\0";
        let symbols = file.len();
        let mut symbol = [0; 24];
        symbol[0] = 1;
        file.extend(symbol);
        let text = file.len();
        file.extend(names);
        let sections = file.len();
        for (kind, at, size, link) in [(11_u32, symbols, 24, 1_u32), (3, text, names.len(), 0)] {
            let mut section = [0; 64];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            section[40..44].copy_from_slice(&link.to_le_bytes());
            file.extend(section);
        }
        file[40..48].copy_from_slice(&(sections as u64).to_le_bytes());
        file[60..62].copy_from_slice(&2_u16.to_le_bytes());
        file
    }

    #[test]
    fn a_small_file_has_its_name() {
        assert_eq!(undefined(&small_file()), Some(vec!["llama_x"]));
    }
}
