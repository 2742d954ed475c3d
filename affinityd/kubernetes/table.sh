# Sourced by run where no affinityd answers: plans from the table that `affinityd init` left.
#
# A line is a GPU, in the order of the node's numbering: INDEX LOCALITY CPULIST NAME...
# shellcheck shell=sh disable=SC2154 # variables of run

plan_from_table() { # cpulist, locality: of what was granted, listed and made visible to this rank
    lines=$(pick "$granted" <"$here/table")
    if [ -n "$listed" ]; then # to a privileged container others' devices are open, too
        picked=$(printf '%s\n' "$lines" | pick "$listed")
        count "$listed"
        entries=$count
        count "$picked" "$newline"
        if [ "$count" = "$entries" ]; then lines=$picked; elif [ "$granted" = "$listed" ]; then lines=''; fi
    fi
    for variable in $variables; do
        eval "value=\$$variable"
        lines=$(see "$lines" "$value")
    done
    count "$lines" "$newline"
    [ "$count" -gt 0 ] || leave "$trouble, and no GPU of $here/table is visible${variables:+ ($said)}"
    [ -z "$rank" ] || lines=$(nth "$lines" $((rank % count)))
    sum_up "$lines"
    cpulist=$(common "$near" "$allowed")
    [ -n "$cpulist" ] || leave "$trouble, and in $here/table none of the CPUs $allowed is near the GPU"
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
        number=${entry%%[!0-9]*}
        [ -n "$number" ] || break
        number=${number#"${number%%[!0]*}"}
        [ "$sign" != - ] || [ -z "$number" ] || break
        case " $numbers" in *" ${number:=0} "*) return ;; esac # repeated: none is visible
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

named() { # PREFIX: each name that begins so, and its line of stdin
    while read -r line; do
        for name in ${line#* * * }; do
            case $name in "$1"*) printf '%s\n' "$name $line" ;; esac
        done
    done
}

sum_up() { # LINES: near, the CPUs of all; locality, the worst
    near='' locality=local
    set -f
    IFS=$newline
    for line in $1; do
        unset IFS
        # shellcheck disable=SC2086 # a word a field
        set -- $line
        is_cpulist "${3-}" || leave "$trouble, and $here/table has CPUs ${3-}"
        near=${near:+$near,}$3
        case $locality,$2 in local,* | *,remote) locality=$2 ;; esac
    done
}

common() { # LIST LIST: the CPUs that are in both
    common=''
    IFS=,
    for one in $1; do
        for other in $2; do
            low=${one%-*} high=${one#*-}
            [ "$low" -ge "${other%-*}" ] || low=${other%-*}
            [ "$high" -le "${other#*-}" ] || high=${other#*-}
            [ "$low" -gt "$high" ] || common=${common:+$common,}$low-$high
        done
    done
    printf %s "$common"
}
