//! Files of a crate that need each other. What lies below another may use what that has, and what lies above may name its parts, so only files of which
//! neither lies below the other are looked at.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::Source;

/// Each circle once, its files in their order.
pub fn find(package: &Path, sources: &[Source]) -> Vec<Vec<String>> {
    let folder = package.join("src");
    let modules: BTreeMap<Vec<String>, &Source> =
        sources.iter().filter_map(|source| Some((module(source.path.strip_prefix(&folder).ok()?), source))).collect();
    let names: Vec<&Vec<String>> = modules.keys().collect();
    let edges: Vec<Vec<usize>> = modules
        .iter()
        .map(|(from, source)| {
            let needed = source.paths.iter().filter_map(|path| resolve(from, path, &modules));
            let apart = needed.filter(|to| !to.starts_with(from) && !from.starts_with(to));
            let mut places: Vec<usize> = apart.filter_map(|to| names.binary_search(&&to).ok()).collect();
            places.sort_unstable();
            places.dedup();
            places
        })
        .collect();
    let circle = |circle: Vec<usize>| {
        let mut files: Vec<String> = circle
            .into_iter()
            .filter_map(|place| Some(modules.get(names.get(place).copied()?)?.path.display().to_string()))
            .collect();
        files.sort();
        files
    };
    components(&edges).into_iter().filter(|component| component.len() > 1).map(circle).collect()
}

/// The module that a file below `src` is.
fn module(path: &Path) -> Vec<String> {
    let mut segments: Vec<String> =
        path.with_extension("").iter().map(|segment| segment.to_string_lossy().into_owned()).collect();
    if segments.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        segments.pop();
    }
    segments
}

/// The file that a path leads into, as far as names alone tell: the longest beginning that is a module.
fn resolve(from: &[String], path: &[String], modules: &BTreeMap<Vec<String>, &Source>) -> Option<Vec<String>> {
    let mut at = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => from.to_vec(),
        // A child, or another crate's.
        first => [from, &[first.to_owned()]].concat(),
    };
    for segment in path.iter().skip(usize::from(!["super", "self"].contains(&path.first()?.as_str()))) {
        match segment.as_str() {
            "super" => drop(at.pop()?),
            "self" => {}
            segment => {
                let below = [&at[..], &[segment.to_owned()]].concat();
                if !modules.contains_key(&below) {
                    break;
                }
                at = below;
            }
        }
    }
    modules.contains_key(&at).then_some(at)
}

/// Tarjan's strongly connected components, without recursion.
fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    let (mut order, mut low) = (vec![usize::MAX; edges.len()], vec![0; edges.len()]);
    let (mut stack, mut on_stack, mut next) = (Vec::new(), vec![false; edges.len()], 0);
    for start in 0..edges.len() {
        if order[start] != usize::MAX {
            continue;
        }
        // A file, and how many of its edges were followed.
        let mut work = vec![(start, 0)];
        while let Some((at, followed)) = work.pop() {
            if followed == 0 {
                (order[at], low[at]) = (next, next);
                next += 1;
                stack.push(at);
                on_stack[at] = true;
            }
            match edges[at].get(followed) {
                Some(&to) => {
                    work.push((at, followed + 1));
                    if order[to] == usize::MAX {
                        work.push((to, 0));
                    } else if on_stack[to] {
                        low[at] = low[at].min(order[to]);
                    }
                }
                None => {
                    if low[at] == order[at] {
                        let begin = stack.iter().rposition(|other| *other == at).unwrap_or(0);
                        let component = stack.split_off(begin);
                        component.iter().for_each(|member| on_stack[*member] = false);
                        found.push(component);
                    }
                    if let Some((above, _)) = work.last() {
                        low[*above] = low[*above].min(low[at]);
                    }
                }
            }
        }
    }
    found
}
