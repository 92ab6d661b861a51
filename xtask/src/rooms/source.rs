//! What is counted of one file of Rust.

use std::path::PathBuf;

use anyhow::Result;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

pub struct Source {
    pub path: PathBuf,
    /// Names of the types that it defines, but for those of its tests.
    pub types: Vec<String>,
    /// With the lines of each, those of tests among them.
    pub functions: Vec<(String, usize)>,
    /// What it names, from its own place, each as a list of segments: `crate::a::b`, `super::c`. Without those of its tests.
    pub paths: Vec<Vec<String>>,
}

impl Source {
    pub fn read(path: &str, text: &str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let mut source = Source { path: path.into(), types: Vec::new(), functions: Vec::new(), paths: Vec::new() };
        source.visit_file(&file);
        source.paths.sort();
        source.paths.dedup();
        Ok(source)
    }

    fn function(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        self.functions.push((name.to_string(), whole.end().line + 1 - whole.start().line));
    }

    /// All paths of a `use`.
    fn used(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.used(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.paths.push(with(&name.ident)),
            syn::UseTree::Rename(name) => self.paths.push(with(&name.ident)),
            syn::UseTree::Glob(_) => self.paths.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.used(tree, before)),
        }
    }
}

/// Whether something is only there for tests.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Meta>().is_ok_and(|meta| asks_for_tests(&meta))
    })
}

/// `test`, or `all(test, ...)`.
fn asks_for_tests(meta: &syn::Meta) -> bool {
    match meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(asks_for_tests)),
        _ => false,
    }
}

impl Visit<'_> for Source {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            return visit::visit_item_mod(self, module);
        }
        let (types, paths) = (self.types.len(), self.paths.len());
        visit::visit_item_mod(self, module);
        self.types.truncate(types);
        self.paths.truncate(paths);
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.types.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &syn::ItemEnum) {
        self.types.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &syn::ItemTrait) {
        self.types.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        self.types.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }

    fn visit_item_union(&mut self, item: &syn::ItemUnion) {
        self.types.push(item.ident.to_string());
        visit::visit_item_union(self, item);
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.function(&item.sig.ident, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.function(&item.sig.ident, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.used(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}
