# Sourced by run where no affinityd answers: plans from the table that `affinityd init` left.
#
# A line is a GPU, in the order of the node's numbering: INDEX LOCALITY CPULIST NAME...
# shellcheck shell=sh disable=SC2154 # variables of run

plan_from_table() { # cpulist, locality: of what was granted, listed and made visible to this rank
    table=$(cat_table <"$here/table")
    lines=$(printf '%s\n' "$table" | pick "$granted")
    [ "$granted" != "$listed" ] || lines=$table # which is all that is known
    if [ -n "$listed" ]; then # to a privileged container others' devices are open, too
        picked=''
        ! resolve "$table" "$listed" || picked=$(printf '%s\n' "$lines" | pick "$resolved")
        count "$picked" "$newline" && found=$count
        count "$resolved"
        if [ "$found" = "$count" ] && [ "$found" -gt 0 ]; then
            lines=$picked
        elif [ "$granted" = "$listed" ]; then
            lines=''
        fi
    fi
    for variable in $variables; do
        eval "value=\$$variable"
        [ "${#value}" -lt 4096 ] || leave "$trouble, and $variable has ${#value} characters"
        lines=$(see "$lines" "$value")
    done
    count "$lines" "$newline"
    [ "$count" -gt 0 ] ||
        leave "$trouble, and no GPU of $here/table is visible${variables:+ ($said)}"
    all=$lines
    [ -z "$rank" ] || lines=$(nth "$lines" $((rank % count)))
    sum_up "$lines"
    # shellcheck disable=SC2034 # of run
    [ -z "$rank" ] || sharers=$(sharing "$all" "$near")
    case $locality,${AFFINITYD_STRICT-} in
    remote,true | remote,1 | remote,yes | remote,on)
        leave "$trouble, and in $here/table CPUs $near are far, which AFFINITYD_STRICT forbids"
        ;;
    esac
    common "$near" "$allowed"
    cpulist=$common
    [ -n "$cpulist" ] ||
        leave "$trouble, and in $here/table none of the CPUs $allowed is near the GPU"
}

cat_table() { # stdin, for an image that has no cat
    while read -r line; do printf '%s\n' "$line"; done
}

resolve() { # LINES LIST: resolved, the index or instance that each entry of the list means
    all=$1 resolved=''
    case $2 in *,) return 1 ;; esac
    set -f
    IFS=,
    # shellcheck disable=SC2086 # a word an entry
    set -- $2
    unset IFS
    for entry; do
        entry=${entry#"${entry%%[![:space:]]*}"} entry=${entry%"${entry##*[![:space:]]}"}
        case $entry in
        GPU-* | MIG-*) line=$(printf '%s\n' "$all" | named "$entry") ;;
        *[!0-9:]* | *:*:*) # a PCI bus id, whose domain may have eight digits
            line=$(printf '%s\n' "$all" | named "${entry#"${entry%????:??:??.?}"}")
            ;;
        *)
            strip "${entry%%:*}"
            line=$(printf '%s\n' "$all" | pick "$number")
            line=${line:+$number $line}
            ;;
        esac
        count "$line" "$newline"
        [ "$count" = 1 ] || return 1
        name=${line#* } # its index
        case $line in MIG-*) name=$line ;; esac
        case $entry in *[!0-9:]* | *:*:*) ;; *:*) instance "${entry#*:}" "$line" ;; esac
        name=${name%% *}
        case ,$resolved, in *",$name,"*) continue ;; esac
        resolved=${resolved:+$resolved,}$name
    done
}

instance() { # NUMBER LINE: name, of that instance of a GPU; the GPU's index, where it has none
    name=${2#* } place=0
    strip "$1"
    for one in ${2#* * * * }; do
        case $one in MIG-*) ;; *) continue ;; esac
        [ "$place" != "$number" ] || name=$one
        place=$((place + 1))
    done
}

pick() { # NAMES: those lines of stdin that have one of the names, once for each
    while read -r index locality cpulist names; do
        for name in $index $names; do
            case ,$1, in *",$name,"*) ;; *) continue ;; esac
            case $name in MIG-*) ;; *) name=$names ;; esac # one instance hides the others
            printf '%s\n' "$index $locality $cpulist $name"
        done
    done
}

nth() { # LINES NUMBER: one of the lines, counted from 0
    place=0
    printf '%s\n' "$1" | while read -r line; do
        [ "$place" != "$2" ] || printf '%s\n' "$line"
        place=$((place + 1))
    done
}

see() { # LINES VALUE: what a variable makes visible, read as the CUDA driver reads its own
    all=$1
    set -f
    IFS=,
    # shellcheck disable=SC2086 # a word an entry
    set -- $2
    unset IFS
    case ${1-} in
    GPU-* | MIG-*) see_named "${1%%-*}-" "$@" ;;
    *) see_numbered "$@" ;;
    esac
}

see_numbered() { # ENTRY...
    numbers=''
    for entry; do
        entry=${entry#"${entry%%[![:space:]]*}"}
        sign=${entry%%[!+-]*} entry=${entry#[+-]}
        strip "${entry%%[!0-9]*}"
        [ -n "$number" ] || break
        [ "$sign" != - ] || [ "$number" = 0 ] || break
        case " $numbers" in *" $number "*) return ;; esac # repeated: none is visible
        numbers="$numbers$number "
    done
    for number in $numbers; do
        line=$(nth "$all" "$number")
        [ -n "$line" ] || break
        printf '%s\n' "$line"
    done
}

see_named() { # KIND ENTRY...: blanks are part of an entry
    kind=$1 entries=, found=, seen=''
    shift
    for entry; do
        case $entry in "$kind"*) ;; *) break ;; esac
        case $entries in *",$entry,"*) return ;; esac
        entries=$entries$entry,
    done
    for entry; do
        case $entry in "$kind"*) ;; *) break ;; esac
        line=$(printf '%s\n' "$all" | named "$entry")
        count "$line" "$newline"
        [ "$count" = 1 ] || break
        case $found in *",${line%% *},"*) return ;; esac # two names of one device
        found=$found${line%% *},
        seen=$seen${line#* }$newline
    done
    printf %s "$seen"
}

named() { # PREFIX: each name that begins so, and the first line of stdin that has it
    names=,
    while read -r line; do
        for name in ${line#* * * }; do
            case $name in "$1"*) ;; *) continue ;; esac
            case $names in *",$name,"*) continue ;; esac
            names=$names$name,
            printf '%s\n' "$name $line"
        done
    done
}

sharing() { # LINES CPULIST: how many of the ranks have this list, who deal the lines out by turns
    alike=0 own=$2
    set -f
    IFS=$newline
    for line in $1; do
        unset IFS
        # shellcheck disable=SC2086 # a word a field
        set -- $line
        [ "${3-}" != "$own" ] || alike=$((alike + 1))
    done
    printf %s $(((ranks * alike + count - 1) / count))
}

sum_up() { # LINES: near, the CPUs of all; locality, the worst
    near='' lists='' locality=local
    set -f
    IFS=$newline
    for line in $1; do
        unset IFS
        # shellcheck disable=SC2086 # a word a field
        set -- $line
        is_cpulist "${3-}" || leave "$trouble, and $here/table has CPUs ${3-}"
        case " $lists " in *" $3 "*) ;; *) lists="$lists $3" near=${near:+$near,}$3 ;; esac
        case $locality,$2 in local,* | *,remote) locality=$2 ;; esac
    done
}
